package dev.headrace.client;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import java.util.List;

/** Sends what header sources say, with every call. What the call itself sends stays. */
final class HeaderInterceptor implements ClientInterceptor {
    private final List<HeaderSource> sources;

    HeaderInterceptor(List<HeaderSource> sources) {
        this.sources = List.copyOf(sources);
    }

    @Override
    public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, CallOptions options, Channel next) {
        return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
            @Override
            public void start(Listener<R> listener, Metadata headers) {
                for (HeaderSource source : sources) {
                    source.headers((name, value) -> headers.put(RequestOptions.headerKey(name), value));
                }
                super.start(listener, headers);
            }
        };
    }
}
