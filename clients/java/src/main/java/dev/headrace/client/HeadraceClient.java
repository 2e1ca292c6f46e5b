package dev.headrace.client;

import dev.headrace.client.errors.HeadraceException;
import dev.headrace.v1.AttachGenerationRequest;
import dev.headrace.v1.CancelGenerationRequest;
import dev.headrace.v1.CancelGenerationResponse;
import dev.headrace.v1.DetokenizeRequest;
import dev.headrace.v1.DetokenizeResponse;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.GenerateResponse;
import dev.headrace.v1.GenerationServiceGrpc;
import dev.headrace.v1.GetGenerationRequest;
import dev.headrace.v1.GetGenerationResponse;
import dev.headrace.v1.GetModelRequest;
import dev.headrace.v1.ListModelsRequest;
import dev.headrace.v1.ListModelsResponse;
import dev.headrace.v1.Model;
import dev.headrace.v1.ModelServiceGrpc;
import dev.headrace.v1.ModelState;
import dev.headrace.v1.TokenizeRequest;
import dev.headrace.v1.TokenizeResponse;
import dev.headrace.v1.TokenizeServiceGrpc;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Flow;
import java.util.concurrent.TimeUnit;

/**
 * A connection to the Headrace service: one HTTP/2 channel, made when it is first needed, for any number of threads.
 *
 * <p>Every call has a deadline: that of its options, or the client's. Every failure is a {@link HeadraceException}.
 * Requests and events are the messages of the contract, {@code dev.headrace.v1}, where each field says what it takes.
 */
public final class HeadraceClient implements AutoCloseable {
    static final String DEFAULT_TARGET = "127.0.0.1:50051";
    static final Duration UNARY_TIMEOUT = Duration.ofSeconds(10);
    private static final long CLOSE_WAIT_MS = 5_000;

    private final ManagedChannel managed;
    private final Channel channel;
    private final Duration timeout;

    HeadraceClient(ManagedChannel managed, HeaderInterceptor headers, Duration timeout) {
        this.managed = managed;
        this.channel = ClientInterceptors.intercept(managed, headers);
        this.timeout = timeout;
    }

    /** A client without TLS, as {@link #builder()} begins it. */
    public static HeadraceClient connect() {
        return builder().build();
    }

    /** A client without TLS and credentials for {@code target}. */
    public static HeadraceClient connect(String target) {
        return builder(target).build();
    }

    /**
     * Begins the settings of a client for the server that the environment names: {@code HEADRACE_TARGET}, else
     * 127.0.0.1:50051; with the API key {@code HEADRACE_API_KEY}, if there is one.
     */
    public static HeadraceClientBuilder builder() {
        String target = System.getenv("HEADRACE_TARGET");
        String apiKey = System.getenv("HEADRACE_API_KEY");
        HeadraceClientBuilder builder = builder(target == null || target.isEmpty() ? DEFAULT_TARGET : target);
        return apiKey == null || apiKey.isEmpty() ? builder : builder.apiKey(apiKey);
    }

    /**
     * Begins the settings of a client; the environment says nothing.
     *
     * @param target {@code host:port}, or another name that gRPC for Java resolves: {@code dns:///llm.internal:443}
     */
    public static HeadraceClientBuilder builder(String target) {
        return new HeadraceClientBuilder(target);
    }

    /** Starts a generation, with the client's timeout. */
    public GenerationStream generate(GenerateRequest request) {
        return generate(request, RequestOptions.DEFAULT);
    }

    /** Starts a generation. Read what is returned inside {@code try (...)}: its end cancels what is left. */
    public GenerationStream generate(GenerateRequest request, RequestOptions options) {
        return new GenerationStream(generating(request, options));
    }

    /**
     * A generation for each subscriber, started when it subscribes. Events come as they are asked for, on the client's
     * executor; failures are {@link HeadraceException}, and cancelling the subscription cancels the call.
     */
    public Flow.Publisher<GenerateResponse> publisher(GenerateRequest request, RequestOptions options) {
        return new GenerationPublisher(generating(request, options));
    }

    /**
     * Starts a generation and returns its whole answer when it is there. The call is cancelled with the future, and
     * when the future is completed by anything else.
     */
    public CompletableFuture<Answer> generateAsync(GenerateRequest request, RequestOptions options) {
        return new AnswerFuture(generating(request, options));
    }

    /** Reads a retained generation on, from the event behind {@code afterSequence}; 0 for all. */
    public GenerationStream attach(String generationId, int afterSequence) {
        return attach(
                AttachGenerationRequest.newBuilder()
                        .setGenerationId(generationId)
                        .setAfterSequence(afterSequence)
                        .build(),
                RequestOptions.DEFAULT);
    }

    /** Reads a retained generation on. Leaving it, or its timeout, ends the reading alone. */
    public GenerationStream attach(AttachGenerationRequest request, RequestOptions options) {
        return new GenerationStream(new EventCall<>(
                channel,
                GenerationServiceGrpc.getAttachGenerationMethod(),
                request,
                request.getAfterSequence(),
                options.timeoutOr(timeout),
                options));
    }

    /** Tells where a generation is. */
    public GetGenerationResponse getGeneration(String generationId) {
        return getGeneration(
                GetGenerationRequest.newBuilder().setGenerationId(generationId).build(), RequestOptions.DEFAULT);
    }

    /** Tells where a generation is, by its id or key. */
    public GetGenerationResponse getGeneration(GetGenerationRequest request, RequestOptions options) {
        return call(GenerationServiceGrpc.getGetGenerationMethod(), request, options);
    }

    /** Stops a generation of the same caller. Its reader gets the text so far, CANCELLED, usage and no error. */
    public CancelGenerationResponse cancelGeneration(String generationId) {
        return cancelGeneration(
                CancelGenerationRequest.newBuilder()
                        .setGenerationId(generationId)
                        .build(),
                RequestOptions.DEFAULT);
    }

    /** Stops a generation of the same caller, by its id or key. */
    public CancelGenerationResponse cancelGeneration(CancelGenerationRequest request, RequestOptions options) {
        return call(GenerationServiceGrpc.getCancelGenerationMethod(), request, options);
    }

    /** All models, by id. */
    public List<Model> listModels() {
        List<Model> models = new ArrayList<>();
        String token = "";
        do {
            ListModelsResponse page = call(
                    ModelServiceGrpc.getListModelsMethod(),
                    ListModelsRequest.newBuilder().setPageToken(token).build(),
                    RequestOptions.DEFAULT);
            models.addAll(page.getModelsList());
            token = page.getNextPageToken();
        } while (!token.isEmpty());
        return models;
    }

    /** One model, by its id or an alias. */
    public Model getModel(String model) {
        return call(
                        ModelServiceGrpc.getGetModelMethod(),
                        GetModelRequest.newBuilder().setModel(model).build(),
                        RequestOptions.DEFAULT)
                .getModel();
    }

    /** Id of the first model that is ready. */
    public String defaultModel() {
        return listModels().stream()
                .filter(model -> model.getState() == ModelState.MODEL_STATE_READY)
                .map(Model::getId)
                .findFirst()
                .orElseThrow(() -> HeadraceException.of(
                        Status.UNAVAILABLE.withDescription("no model of this server is ready"), null, 0));
    }

    /** The token ids of a text or a conversation. */
    public TokenizeResponse tokenize(TokenizeRequest request) {
        return call(TokenizeServiceGrpc.getTokenizeMethod(), request, RequestOptions.DEFAULT);
    }

    /** The text of token ids. */
    public DetokenizeResponse detokenize(DetokenizeRequest request) {
        return call(TokenizeServiceGrpc.getDetokenizeMethod(), request, RequestOptions.DEFAULT);
    }

    /** The channel with this client's headers, for the generated stubs. */
    public Channel channel() {
        return channel;
    }

    /** Cancels the calls that run, and closes the connection. */
    @Override
    public void close() {
        managed.shutdownNow();
        try {
            managed.awaitTermination(CLOSE_WAIT_MS, TimeUnit.MILLISECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private EventCall<GenerateRequest> generating(GenerateRequest request, RequestOptions options) {
        return new EventCall<>(
                channel,
                GenerationServiceGrpc.getGenerateMethod(),
                request,
                0,
                options.timeoutOr(timeout),
                options);
    }

    private <Q, R> R call(MethodDescriptor<Q, R> method, Q request, RequestOptions options) {
        CallOptions bounded = CallOptions.DEFAULT.withDeadlineAfter(
                options.timeoutOr(UNARY_TIMEOUT).toNanos(), TimeUnit.NANOSECONDS);
        Channel own = ClientInterceptors.intercept(
                channel, MetadataUtils.newAttachHeadersInterceptor(options.headers()));
        try {
            return ClientCalls.blockingUnaryCall(own, method, bounded, request);
        } catch (StatusRuntimeException e) {
            throw HeadraceException.of(e);
        }
    }
}
