package dev.headrace.client;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

class RetryPolicyTest {
    @Test
    void the_policy_is_the_one_of_the_documents() throws IOException {
        String page = Files.readString(Path.of("../../docs/lifecycle.md"));
        var block = Pattern.compile("```json\n(.*?)```", Pattern.DOTALL).matcher(page);
        block.find();
        Object documented = new com.google.gson.Gson().fromJson(JsonParser.parseString(block.group(1)), Object.class);
        assertEquals(documented, RetryPolicy.DEFAULT);
    }
}
