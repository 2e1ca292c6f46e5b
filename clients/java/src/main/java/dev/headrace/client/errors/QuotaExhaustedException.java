package dev.headrace.client.errors;

/** What the tenant may use is used up; waiting for seconds does not help. */
public class QuotaExhaustedException extends RateLimitedException {
    private static final long serialVersionUID = 1L;

    QuotaExhaustedException(Facts facts) {
        super(facts);
    }

    @Override
    boolean mayPass() {
        return false;
    }
}
