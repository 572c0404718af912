"""An S3 server on this machine: moto, which checks signatures and keeps objects in memory."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from broker import WAIT, free_port

REGION = "eu-central-1"
BUCKET = "lake"
POLICY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}


@dataclass(frozen=True)
class Store:
    """An S3 server, and the credentials of its only user."""

    url: str
    key: str
    secret: str

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that AWS's libraries, delta-rs and pyarrow read."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def delta(self, **more: str) -> dict[str, str]:
        """Return the options for a Delta table."""
        return self.environment | more

    def iceberg(self, **more: str) -> dict[str, str]:
        """Return the options for an Iceberg table, except those for its catalog."""
        return {
            "s3.endpoint": self.url,
            "s3.region": REGION,
            "s3.access-key-id": self.key,
            "s3.secret-access-key": self.secret,
            **more,
        }

    def client(self, service: str = "s3") -> Any:
        """Return a client for an AWS service."""
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            config=Config(retries={"max_attempts": 1}),
        )

    def take(self) -> dict[str, bytes]:
        """Delete the bucket, and return the objects that it contained."""
        s3, found = self.client(), {}
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            for one in page.get("Contents", ()):
                name = one["Key"]
                found[name] = s3.get_object(Bucket=BUCKET, Key=name)["Body"].read()
                s3.delete_object(Bucket=BUCKET, Key=name)
        s3.delete_bucket(Bucket=BUCKET)
        return found

    def give(self, objects: dict[str, bytes]) -> None:
        """Create the bucket with the given objects."""
        s3 = self.client()
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        for name, data in objects.items():
            s3.put_object(Bucket=BUCKET, Key=name, Body=data)


@contextmanager
def serving() -> Iterator[Store]:
    """Run a server with an empty bucket and one user. It refuses requests from anyone else."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    # Without these actions, nobody could create the first user.
    environment = clean() | {"INITIAL_NO_AUTH_ACTION_COUNT": "1000000"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:  # fmt: skip
        try:
            until = time.monotonic() + WAIT
            while not _ready(url):
                assert server.poll() is None, "moto has ended"
                assert time.monotonic() < until
            first = Store(url, "first", "first")
            iam = first.client("iam")
            iam.create_user(UserName="spark")
            iam.put_user_policy(
                UserName="spark", PolicyName="all", PolicyDocument=json.dumps(POLICY)
            )
            made = iam.create_access_key(UserName="spark")["AccessKey"]
            first.give({})
            kind = {"Content-Type": "text/plain"}
            reset = urllib.request.Request(f"{url}/moto-api/reset-auth", b"0", kind)
            urllib.request.urlopen(reset, timeout=WAIT).close()
            yield Store(url, made["AccessKeyId"], made["SecretAccessKey"])
        finally:
            server.kill()


def _ready(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/moto-api/data.json", timeout=WAIT).close()
    except OSError:
        return False
    return True


def clean() -> dict[str, str]:
    """Return the environment without the AWS variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
