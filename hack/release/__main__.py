"""`make release`: everything of a release into dist/, the same bytes from the same commit (docs/releasing.md)."""

import argparse
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import archives
import checks
import images
import sbom

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("larry", "extproc", "lab", "operator")


def make(dist: Path, *, version: str, epoch: int, with_images: bool) -> None:
    """Write every file of the release; the wheels first, as they empty the folder."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch)}
    subprocess.run(["make", "-C", str(ROOT), "wheels"], check=True, env=environment)  # noqa: S607
    archives.package_chart(ROOT / "charts/halffull", dist / f"halffull-{version}.tgz", mtime=epoch)
    for folder in PACKAGES:
        bom = sbom.of_package(ROOT, folder, version, epoch=epoch)
        sbom.write(bom, dist / f"halffull_{folder}-{version}.cdx.json")
    if with_images:
        timestamp = datetime.fromtimestamp(epoch, UTC).isoformat()
        listed = []
        for image in images.IMAGES:
            name = f"halffull-{image}"
            source = images.build(ROOT, image, version)
            digest = images.to_oci(source, dist / f"{name}-{version}.oci.tar", tag=version)
            bom = sbom.of_image(name, version, digest, images.contents(source), timestamp=timestamp)
            sbom.write(bom, dist / f"{name}-{version}-image.cdx.json")
            listed.append(f"{name}:{version}@{digest}\n")
        (dist / "images.txt").write_text("".join(listed))
    archives.write_sums(dist)


def main() -> int:
    """Check, make, list."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--version", help="the version that is meant; must be what VERSION says")
    parser.add_argument("--no-images", action="store_true", help="all but the images: needs neither root nor buildah")
    parser.add_argument("--rehearsal", action="store_true", help="make it although the checks found something")
    options = parser.parse_args()
    found = checks.problems(ROOT, options.version) + checks.uncommitted(ROOT)
    for problem in found:
        sys.stderr.write(f"release: {problem}\n")
    impossible = [] if options.no_images else images.problems()
    for problem in impossible:
        sys.stderr.write(f"release: {problem}\n")
    if impossible or (found and not options.rehearsal):
        return 1
    version, dist = (ROOT / "VERSION").read_text().strip(), ROOT / "dist"
    make(dist, version=version, epoch=checks.commit_time(ROOT), with_images=not options.no_images)
    sys.stdout.write((dist / "SHA256SUMS").read_text())
    if found:
        sys.stdout.write("A rehearsal: publish none of it.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
