"""The OpenAI API as data: requests to the contract, events to documents, failures to error objects.

Pure: knows neither grpc nor a web framework nor the clock.
"""
