package dev.headrace.client.errors;

/** The model cannot do what was asked; {@link #metadata()} names the {@code capability}. */
public class CapabilityUnsupportedException extends HeadraceException {
    private static final long serialVersionUID = 1L;

    CapabilityUnsupportedException(Facts facts) {
        super(facts);
    }
}
