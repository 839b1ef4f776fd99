"""Small runs with one known problem each: whether the report names it, and the change that ends it."""
