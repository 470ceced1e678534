"""How random runs are drawn here: the same ones each time, and a failing one prints what replays it."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "protocol",
    derandomize=True,
    print_blob=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("protocol")
