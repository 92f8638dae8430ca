"""What building for TensorRT needs beside the lowering: encodings, precisions, architectures, lint, network, plans."""
