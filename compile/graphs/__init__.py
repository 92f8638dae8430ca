"""What back-ends share: semantic graphs in ONNX, the passes over them, and the weights they wait for."""
