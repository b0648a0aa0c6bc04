from .batch import due_all as due_all
from .batch import first_refused as first_refused
from .batch import order_all as order_all
from .batch import order_by_rules_all as order_by_rules_all
from .batch import reset_all as reset_all
from .batch import show_all as show_all
from .batch import step_all as step_all
from .compiling import CODE as CODE
