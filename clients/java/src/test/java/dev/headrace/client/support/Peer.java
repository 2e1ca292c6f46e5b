package dev.headrace.client.support;

import dev.headrace.client.HeadraceClient;
import dev.headrace.client.HeadraceClientBuilder;
import dev.headrace.v1.AttachGenerationRequest;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.GenerateResponse;
import dev.headrace.v1.GenerationServiceGrpc;
import io.grpc.Context;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerCredentials;
import io.grpc.ServerInterceptor;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** A server on a real socket that plays a script for each call in turn; the last one serves all that follow. */
public final class Peer implements AutoCloseable {
    /** What one call gets. */
    @FunctionalInterface
    public interface Script {
        void play(ServerCallStreamObserver<GenerateResponse> call) throws Exception;
    }

    private static final Metadata.Key<String> REQUEST_ID =
            Metadata.Key.of("x-request-id", Metadata.ASCII_STRING_MARSHALLER);

    private final Server server;
    private final List<Script> scripts;
    private final AtomicInteger calls = new AtomicInteger();
    private final CountDownLatch called = new CountDownLatch(1);
    private final BlockingQueue<Boolean> cancels = new LinkedBlockingQueue<>();
    private volatile Metadata headers;
    private volatile long deadlineMs;

    private Peer(ServerCredentials credentials, Script... scripts) {
        this.scripts = List.of(scripts);
        Metadata own = new Metadata();
        own.put(REQUEST_ID, "req_1");
        try {
            server = NettyServerBuilder.forAddress(
                            new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), credentials)
                    .addService(new Service())
                    .intercept(new HeaderKeeper())
                    .intercept(MetadataUtils.newAttachMetadataServerInterceptor(own))
                    .build()
                    .start();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    public static Peer playing(Script... scripts) {
        return new Peer(InsecureServerCredentials.create(), scripts);
    }

    public static Peer playing(ServerCredentials credentials, Script... scripts) {
        return new Peer(credentials, scripts);
    }

    /** Sends events and ends well. */
    public static Script sending(List<GenerateResponse> events) {
        return call -> {
            events.forEach(call::onNext);
            call.onCompleted();
        };
    }

    /** Sends events and then nothing more. */
    public static Script hangingAfter(List<GenerateResponse> events) {
        return call -> events.forEach(call::onNext);
    }

    /** Sends events and fails. */
    public static Script failing(Throwable failure, List<GenerateResponse> events) {
        return call -> {
            events.forEach(call::onNext);
            call.onError(failure);
        };
    }

    public String target() {
        return "127.0.0.1:" + server.getPort();
    }

    public HeadraceClient client() {
        return HeadraceClient.connect(target());
    }

    public HeadraceClientBuilder builder() {
        return HeadraceClient.builder(target());
    }

    public int calls() {
        return calls.get();
    }

    /** A header of the last call. */
    public String header(String name) {
        return headers.get(Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER));
    }

    /** What was left of the last call's time when it came. */
    public long deadlineMs() {
        return deadlineMs;
    }

    /** Waits until a call has come. */
    public void awaitCall() throws InterruptedException {
        called.await();
    }

    /** Waits until a call has ended; true for one that was cancelled. */
    public boolean sawCancel() throws InterruptedException {
        return Objects.requireNonNull(cancels.poll(5, TimeUnit.SECONDS), "no call has ended");
    }

    @Override
    public void close() {
        server.shutdownNow();
    }

    private void play(StreamObserver<GenerateResponse> observer) {
        var call = (ServerCallStreamObserver<GenerateResponse>) observer;
        call.setOnCancelHandler(() -> cancels.add(true));
        call.setOnCloseHandler(() -> cancels.add(false));
        var deadline = Context.current().getDeadline();
        deadlineMs = deadline == null ? 0 : deadline.timeRemaining(TimeUnit.MILLISECONDS);
        called.countDown();
        try {
            scripts.get(Math.min(calls.getAndIncrement(), scripts.size() - 1)).play(call);
        } catch (Exception e) {
            call.onError(e);
        }
    }

    private final class Service extends GenerationServiceGrpc.GenerationServiceImplBase {
        @Override
        public void generate(GenerateRequest request, StreamObserver<GenerateResponse> observer) {
            play(observer);
        }

        @Override
        public void attachGeneration(AttachGenerationRequest request, StreamObserver<GenerateResponse> observer) {
            play(observer);
        }
    }

    private final class HeaderKeeper implements ServerInterceptor {
        @Override
        public <Q, R> ServerCall.Listener<Q> interceptCall(
                ServerCall<Q, R> call, Metadata sent, ServerCallHandler<Q, R> next) {
            headers = sent;
            return next.startCall(call, sent);
        }
    }
}
