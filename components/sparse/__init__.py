"""Sparse fields: frames of which most numbers are zero or as in the frame before travel and are held as differences."""

from components.sparse.codec import Encoder as Encoder
from components.sparse.codec import counts as counts
from components.sparse.codec import dense as dense
from components.sparse.codec import loops as loops
from components.sparse.codec import mismatch as mismatch
