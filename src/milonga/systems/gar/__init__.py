"""GAR (arXiv 2512.16917): a generator and a discriminator of slices of its reasoning learn adversarially."""
