"""SBOMs in CycloneDX 1.6: of a package by cyclonedx-py from what its lock file pins, of an image by what is in it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from images import component

Json = dict[str, Any]


def of_package(root: Path, folder: str, version: str, *, epoch: int) -> Json:
    """Of one wheel: the package, and all that its requirements file pins, ours beside it included."""
    lock = root / "requirements" / f"{folder}.txt"
    program = Path(sys.executable).with_name("cyclonedx-py")
    command = [str(program), "requirements", str(lock) if lock.exists() else "-", "--mc-type", "library"]
    command += ["--pyproject", str(root / folder / "pyproject.toml"), "--sv", "1.6"]
    command += ["--output-reproducible", "--no-validate"]  # write() does, once for all of it
    # It warns that the root has no dependencies: they are added below, where ours are known too.
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONWARNINGS": "ignore::UserWarning"}
    made = subprocess.run(command, check=True, input="", stdout=subprocess.PIPE, text=True, env=environment).stdout
    bom: Json = json.loads(made)
    main = bom["metadata"]["component"]
    main |= {"version": version, "purl": f"pkg:pypi/{main['name']}@{version}"}
    project = tomllib.loads((root / folder / "pyproject.toml").read_text())["project"]
    direct = {re.split(r"[ ;=<>~!\[]", each)[0].lower() for each in project["dependencies"]}
    ours = sorted(name for name in direct if name.startswith("halffull-"))
    parts = [component(f"pkg:pypi/{name}@{version}", name, version, "Apache-2.0") for name in ours]
    bom["components"] = [*bom.get("components", []), *parts]
    refs = sorted(part["bom-ref"] for part in bom["components"] if part["name"].lower() in direct)
    others = [each for each in bom.get("dependencies", []) if each["ref"] != main["bom-ref"]]
    own = [{"ref": part["bom-ref"]} for part in parts]
    bom["dependencies"] = [{"ref": main["bom-ref"], "dependsOn": refs}, *others, *own]
    return bom


def of_image(name: str, version: str, digest: str, parts: list[Json], *, timestamp: str) -> Json:
    """Of one image: `digest` is its manifest's, `parts` what `images.contents` found."""
    purl = f"pkg:oci/{name}@{digest.replace(':', '%3A')}"
    main = {"type": "container", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": timestamp, "component": main},
        "components": parts,
    }


def write(bom: Json, target: Path) -> None:
    """Write an SBOM; one that CycloneDX' schema refuses ends the release."""
    text = json.dumps(bom, indent=2, sort_keys=True) + "\n"
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert error is None, f"{target.name} is no CycloneDX: {error}"
    target.write_text(text)
