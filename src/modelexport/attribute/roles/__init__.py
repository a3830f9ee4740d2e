"""What a node does, from dataflow: attention, MLP, norms, embeddings, residuals, head; joined in `assign.py`."""
