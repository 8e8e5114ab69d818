"""The image of docs/backfill.md's recipe for tables: the checkout's Spark image with the jars of Delta and Iceberg."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from e2e.cluster import ROOT
from e2e.local_cluster.builder import Recipe, open_builder
from e2e.local_cluster.cluster import LocalCluster
from e2e.local_cluster.images import SPARK, build_images
from e2e.local_cluster.instance import Instance
from e2e.local_cluster.jars import ensure_table_jars

TABLE_IMAGE: Final = "consumer-fleet-spark-tables:1"
RECIPE: Final = ROOT / "examples" / "tables" / "Dockerfile"


def load_table_image(instance: Instance) -> str:
    """Build the image and load it into the embedded cluster; returns its name."""
    build_images(SPARK)
    cluster = LocalCluster(instance)
    with tempfile.TemporaryDirectory(prefix="fleet-table-image-") as folder:
        context, archive = Path(folder, "context"), Path(folder, "image.tar")
        shutil.copytree(ensure_table_jars(), context / "jars")
        recipe = re.sub(r"(?m)^ARG SPARK_IMAGE=.*$", f"ARG SPARK_IMAGE={SPARK.tag}", RECIPE.read_text())
        (context / "Dockerfile").write_text(recipe)
        tag = f"localhost/{TABLE_IMAGE}"
        with open_builder() as builder:
            builder.build(context, tag=tag, title="consumer-fleet-spark-tables", recipe=Recipe(base=SPARK.base))
            builder.pack(tag, archive, name=f"docker.io/library/{TABLE_IMAGE}")
            builder.remove(tag)
        cluster.load_image(archive)
    return TABLE_IMAGE
