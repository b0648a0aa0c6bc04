from .batch import first_refused as first_refused
from .batch import reset_all as reset_all
from .batch import show_all as show_all
from .batch import step_all as step_all
from .chance import draw as draw
from .compiling import CODE as CODE
