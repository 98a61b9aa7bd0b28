"""What is deployed, a flow per module, and the reproductions of the papers' figures."""
