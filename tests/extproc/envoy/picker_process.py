"""A picker with a FakePool as a process; its argument is JSON: {"listen": …, "endpoints": […], "fail_open": …}."""

import asyncio
import json
import sys

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.xds.gateway_config import GatewayConfig
from tests.extproc.envoy.stack import Picker


async def main() -> None:
    given = json.loads(sys.argv[1])
    picker = Picker(listen=given["listen"], config=GatewayConfig(listen="127.0.0.1:0"), fail_open=given["fail_open"])
    picker.set_endpoints([Endpoint(address) for address in given["endpoints"]])
    await picker.start()
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


asyncio.run(main())
