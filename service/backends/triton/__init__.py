"""Triton as an engine, over gRPC; the only package that imports tritonclient.

One module per tensor contract (`ensemble`), and around it what all contracts
share: tensors on the wire, the stream, the stop request, faults and health.
"""
