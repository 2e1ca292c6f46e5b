package dev.headrace.client.errors;

/**
 * One thing that is wrong with one field.
 *
 * @param field path in the request, for example {@code sampling.temperature}; empty where the rest is only counted
 * @param description what is accepted there, and what was sent; for people
 */
public record Violation(String field, String description) {}
