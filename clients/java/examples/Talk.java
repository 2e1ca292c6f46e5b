import dev.headrace.client.Conversation;
import dev.headrace.client.HeadraceClient;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.SamplingParams;

/** A conversation of two turns, each answer taken whole. */
public class Talk {
    public static void main(String[] args) {
        try (var client = HeadraceClient.connect()) {
            var chat = Conversation.of(Conversation.system("Be brief."), Conversation.user("Name a river."))
                    .toBuilder();
            var request = GenerateRequest.newBuilder()
                    .setModel(client.defaultModel())
                    .setSampling(SamplingParams.newBuilder().setMaxOutputTokens(32));

            for (var question : new String[] {"And a longer one?", ""}) {
                try (var stream = client.generate(request.setChat(chat).build())) {
                    var answer = stream.collect();
                    var usage = answer.usage(); // a count that is not set is unknown
                    System.out.println(answer.text());
                    System.out.println("  " + answer.finishReason() + ", "
                            + (usage.hasOutputTokenCount() ? usage.getOutputTokenCount() : "?") + " tokens");
                    chat.addMessages(Conversation.assistant(answer.choices().get(0)));
                    chat.addMessages(Conversation.user(question));
                }
            }
        }
    }
}
