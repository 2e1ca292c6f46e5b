package dev.headrace.client;

import io.grpc.ChannelCredentials;
import io.grpc.ClientInterceptor;
import io.grpc.InsecureChannelCredentials;
import io.grpc.TlsChannelCredentials;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;

/** The settings of a {@link HeadraceClient}; every one has a default. */
public final class HeadraceClientBuilder {
    private static final String USER_AGENT = "headrace-java/0.1.0";
    // Of the service itself, where the engine's own limits are not lower.
    private static final Duration DEFAULT_TIMEOUT = Duration.ofSeconds(600);
    // A gRPC server with default settings answers more than two pings within 5 minutes of silence with GOAWAY, which
    // kills a call that waits for a slot.
    private static final Duration DEFAULT_KEEP_ALIVE = Duration.ofSeconds(310);
    private static final Duration KEEP_ALIVE_TIMEOUT = Duration.ofSeconds(20);
    // The library's default is 4 MiB; the token ids of a long text are more.
    private static final int MAX_MESSAGE_BYTES = 64 * 1024 * 1024;

    // The library's window is 1 MiB and grows, so that a reader that stalls would let the server run tens of thousands
    // of tokens ahead. Tokens need latency, not bandwidth.
    private static final int WINDOW_BYTES = 64 * 1024;

    private final String target;
    private final List<HeaderSource> headers = new ArrayList<>();
    private final List<ClientInterceptor> interceptors = new ArrayList<>();
    private ChannelCredentials credentials;
    private TlsChannelCredentials.Builder tls;
    private String authority;
    private Duration timeout = DEFAULT_TIMEOUT;
    private Duration keepAlive = DEFAULT_KEEP_ALIVE;
    private boolean isRetrying = true;
    private Executor executor;

    HeadraceClientBuilder(String target) {
        this.target = Objects.requireNonNull(target);
    }

    /** Sends {@code authorization: Bearer KEY} with every call; over a network only with TLS. */
    public HeadraceClientBuilder apiKey(String key) {
        String value = "Bearer " + Objects.requireNonNull(key);
        return headers(put -> put.accept("authorization", value));
    }

    /** Asks {@code source} for headers of every call: {@code traceparent}, a token that is renewed. */
    public HeadraceClientBuilder headers(HeaderSource source) {
        headers.add(Objects.requireNonNull(source));
        return this;
    }

    /** Puts an interceptor of gRPC's around every call, like that of OpenTelemetry's instrumentation. */
    public HeadraceClientBuilder intercept(ClientInterceptor interceptor) {
        interceptors.add(Objects.requireNonNull(interceptor));
        return this;
    }

    /** Uses TLS and trusts the roots of this Java. */
    public HeadraceClientBuilder tls() {
        tlsBuilder();
        return this;
    }

    /**
     * Uses TLS and trusts the certificates in this PEM file alone.
     *
     * @throws UncheckedIOException if it cannot be read
     */
    public HeadraceClientBuilder tls(Path ca) {
        try {
            tlsBuilder().trustManager(ca.toFile());
            return this;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /**
     * Uses TLS and shows this certificate: PEM files of the chain, and of its key in PKCS #8.
     *
     * @throws UncheckedIOException if one cannot be read
     */
    public HeadraceClientBuilder clientCertificate(Path chain, Path key) {
        try {
            tlsBuilder().keyManager(chain.toFile(), key.toFile());
            return this;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Expects this name in the server's certificate, where it is not the one of the target. */
    public HeadraceClientBuilder authority(String name) {
        authority = Objects.requireNonNull(name);
        return this;
    }

    /** Takes gRPC's own credentials of a channel in place of the settings for TLS. */
    public HeadraceClientBuilder credentials(ChannelCredentials channelCredentials) {
        credentials = Objects.requireNonNull(channelCredentials);
        return this;
    }

    /** Bounds a generation whose options name no timeout; 600 s if unset. Other calls have 10 s. */
    public HeadraceClientBuilder timeout(Duration time) {
        timeout = RequestOptions.positive(time);
        return this;
    }

    /**
     * Pings a connection that was silent for this long while calls run; 310 s if unset, which any server tolerates. The
     * Headrace service allows 30 s, which notices one that vanished sooner; proxies may not.
     */
    public HeadraceClientBuilder keepAlive(Duration time) {
        keepAlive = RequestOptions.positive(time);
        return this;
    }

    /** Whether gRPC repeats by itself what may be repeated unasked: true if unset. */
    public HeadraceClientBuilder retries(boolean areOn) {
        isRetrying = areOn;
        return this;
    }

    /** Runs callbacks of publishers and futures; threads of gRPC's own if unset. */
    public HeadraceClientBuilder executor(Executor callbacks) {
        executor = Objects.requireNonNull(callbacks);
        return this;
    }

    /** Returns the client; it connects when it is first used. */
    public HeadraceClient build() {
        NettyChannelBuilder channel = NettyChannelBuilder.forTarget(target, channelCredentials())
                .userAgent(USER_AGENT)
                .flowControlWindow(WINDOW_BYTES)
                .maxInboundMessageSize(MAX_MESSAGE_BYTES)
                .keepAliveTime(keepAlive.toMillis(), TimeUnit.MILLISECONDS)
                .keepAliveTimeout(KEEP_ALIVE_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS)
                // A name service cannot make this client repeat what it must not.
                .disableServiceConfigLookUp()
                .defaultServiceConfig(isRetrying ? RetryPolicy.DEFAULT : RetryPolicy.NONE)
                .perRpcBufferLimit(RetryPolicy.BUFFER_BYTES)
                .intercept(interceptors);
        if (isRetrying) {
            channel.enableRetry();
        } else {
            channel.disableRetry();
        }
        if (authority != null) {
            channel.overrideAuthority(authority);
        }
        if (executor != null) {
            channel.executor(executor);
        }
        return new HeadraceClient(channel.build(), new HeaderInterceptor(headers), timeout);
    }

    private TlsChannelCredentials.Builder tlsBuilder() {
        if (tls == null) {
            tls = TlsChannelCredentials.newBuilder();
        }
        return tls;
    }

    private ChannelCredentials channelCredentials() {
        if (credentials != null) {
            return credentials;
        }
        return tls == null ? InsecureChannelCredentials.create() : tls.build();
    }
}
