"""The Responses API: one request shape, one document, and named events with numbers of their own.

Pure, as the package around it: knows neither grpc nor a web framework nor the
clock. What is kept of a response for some minutes can be fetched by its id;
nothing is stored that another one could be continued from, and what a
conversation needs comes with every request.
"""
