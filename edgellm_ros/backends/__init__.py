"""Devices behind one seam: ONNX Runtime on a CPU, a scripted fake; base.py is the contract."""
