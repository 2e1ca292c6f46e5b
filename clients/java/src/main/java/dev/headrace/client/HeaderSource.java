package dev.headrace.client;

import java.util.function.BiConsumer;

/**
 * Says which headers a call sends, anew for each call and on the thread that makes it: the context of a trace, a token
 * that is renewed.
 *
 * <p>With OpenTelemetry's API:
 *
 * <pre>{@code
 * builder.headers(put -> GlobalOpenTelemetry.getPropagators().getTextMapPropagator()
 *         .inject(Context.current(), put, BiConsumer::accept));
 * }</pre>
 */
@FunctionalInterface
public interface HeaderSource {
    /** Gives each header, by its name in lower case, to {@code put}. */
    void headers(BiConsumer<String, String> put);
}
