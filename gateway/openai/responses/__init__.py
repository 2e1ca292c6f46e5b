"""The Responses API: one request shape, one document, and named events with numbers of their own.

Pure, as the package around it: knows neither grpc nor a web framework nor the
clock. Nothing is stored, so a response can be neither fetched nor continued by
its id; what a conversation needs comes with every request.
"""
