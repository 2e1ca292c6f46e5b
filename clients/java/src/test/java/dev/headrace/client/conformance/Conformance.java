package dev.headrace.client.conformance;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** Carries out a scenario for each line of JSON that comes, and answers each with one; see clients/conformance.yaml. */
public final class Conformance {
    private Conformance() {}

    public static void main(String[] arguments) throws IOException {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonObject scenario = JsonParser.parseString(line).getAsJsonObject();
            JsonObject told = new JsonObject();
            told.add("name", scenario.get("name"));
            long startedNs = System.nanoTime();
            new Scenario(scenario).play(told);
            told.addProperty("elapsed_ms", (System.nanoTime() - startedNs) / 1_000_000);
            out.println(told);
        }
    }
}
