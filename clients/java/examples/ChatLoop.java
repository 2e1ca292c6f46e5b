import dev.headrace.client.Conversation;
import dev.headrace.client.HeadraceClient;
import dev.headrace.client.errors.HeadraceException;
import dev.headrace.v1.ChatInput;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.SamplingParams;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;

/** A chat in a terminal: a line is a question, an empty line or the end of input is the end. */
public class ChatLoop {
    public static void main(String[] args) throws IOException {
        var in = new BufferedReader(new InputStreamReader(System.in));
        try (var client = HeadraceClient.connect()) {
            var model = args.length > 0 ? args[0] : client.defaultModel();
            var chat = ChatInput.newBuilder();
            System.out.print(model + "> ");
            for (var line = in.readLine(); line != null && !line.isBlank(); line = in.readLine()) {
                answer(client, model, chat.addMessages(Conversation.user(line)));
                System.out.print(model + "> ");
            }
            System.out.println();
        }
    }

    static void answer(HeadraceClient client, String model, ChatInput.Builder chat) {
        var request = GenerateRequest.newBuilder()
                .setModel(model)
                .setChat(chat)
                .setSampling(SamplingParams.newBuilder().setMaxOutputTokens(256))
                .build();
        var text = new StringBuilder();
        try (var stream = client.generate(request)) {
            for (var piece : stream.deltas()) {
                System.out.print(piece);
                System.out.flush();
                text.append(piece);
            }
            System.out.println();
            chat.addMessages(Conversation.assistant(text.toString()));
        } catch (HeadraceException e) {
            System.out.println("\n" + e.getMessage());
            chat.removeMessages(chat.getMessagesCount() - 1); // as if it had not been asked
        }
    }
}
