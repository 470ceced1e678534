"""The checkers, each about one promise."""

from tests.fuzz.checkers.agreement import Agreement
from tests.fuzz.checkers.base import Checker
from tests.fuzz.checkers.clipping import Clipping
from tests.fuzz.checkers.conservation import Conservation
from tests.fuzz.checkers.containment import Containment
from tests.fuzz.checkers.drawn_once import DrawnOnce
from tests.fuzz.checkers.ends import Ends
from tests.fuzz.checkers.exactly_once import ExactlyOnce
from tests.fuzz.checkers.frozen_set import FrozenSet
from tests.fuzz.checkers.hyper_parameters import HyperParameters
from tests.fuzz.checkers.meetings import Meetings
from tests.fuzz.checkers.membership import Membership
from tests.fuzz.checkers.old_records import OldRecords
from tests.fuzz.checkers.plain_training import PlainTraining
from tests.fuzz.checkers.present_mask import PresentMask
from tests.fuzz.checkers.quorum import Quorum
from tests.fuzz.checkers.rows_and_slots import RowsAndSlots
from tests.fuzz.checkers.staleness import Staleness
from tests.fuzz.checkers.summation_order import SummationOrder
from tests.fuzz.checkers.version_order import VersionOrder
from tests.fuzz.checkers.wait_bound import WaitBound

ALL: tuple[type[Checker], ...] = (
    ExactlyOnce,
    FrozenSet,
    Quorum,
    Membership,
    Staleness,
    RowsAndSlots,
    OldRecords,
    Conservation,
    SummationOrder,
    Clipping,
    Containment,
    HyperParameters,
    PresentMask,
    VersionOrder,
    Agreement,
    PlainTraining,
    WaitBound,
    Meetings,
    DrawnOnce,
    Ends,
)
