"""The ONNX Runtime back-end: its lowering, its block-quantised weights, and calibration of them."""
