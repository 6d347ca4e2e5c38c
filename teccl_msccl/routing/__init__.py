"""Routes for the flows of training jobs over a Clos fabric: how efficiently the network serves them, and better ones
(arXiv 2503.05324)."""
