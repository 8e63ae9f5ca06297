"""Snapshots of a small pool."""

import random
from typing import Any

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.load_report import decode_load_report
from halffull_extproc.policies import Policy
from halffull_extproc.poll import PollStatus
from halffull_extproc.pool import Pool, PoolConfig, Source
from halffull_extproc.status import Snapshot

from .reports import report


def pool_of(*addresses: str, name: str = "engine-0") -> Pool:
    pool = Pool(PoolConfig(policy=Policy.SAL, source=Source.REPORT), rng=random.Random(1))
    pool.update_endpoints([Endpoint(address=address, name=name) for address in addresses], now=0.5)
    for address in addresses[:-1]:
        pool.report(address, decode_load_report(report()), sent=0.9, now=1.0)
    return pool


def snapshot_of(pool: Pool, **changed: Any) -> Snapshot:
    fields: dict[str, Any] = {
        "version": "1.2.3",
        "uptime": 5.0,
        "policy": "SAL",
        "failure_mode": "FailOpen",
        "config_source": "picker.yaml",
        "config_error": "",
        "config_errors": 0,
        "config_at_start": (),
        "troubles": {"endpoints": "", "polling": ""},
        "envoys": 1,
        "streams": 3,
        "ads": {("Cluster", "sent"): 2, ("Listener", "rejected"): 1},
        "ads_rejection": "",
        "grpc_failures": {("pick", "malformed"): 4},
        "polls": {"10.0.0.1:80": PollStatus(7, {"timeout": 2, "connect": 1}, "no answer for 0.2 s")},
        "pool": pool.status(now=1.05),
    }
    return Snapshot(**{**fields, **changed})
