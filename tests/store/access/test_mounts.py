"""The kernel's table of mounts: what of real tables is memory or a container's own layer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from privpipe.store.access.mounts import find_mount, name_loss, read_mounts

HOST = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw,size=12334492k,nr_inodes=3083623,mode=755
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24684092k
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:33 / /run rw,nosuid,nodev shared:5 - tmpfs tmpfs rw,size=1638400k,mode=755
41 40 0:51 / /run/user/1000 rw,nosuid,nodev,relatime shared:300 - tmpfs tmpfs rw,uid=1000
43 27 8:17 / /srv/two\\040words rw,relatime shared:30 master:2 - xfs /dev/sdb1 rw,attr2
44 27 0:55 / /net/home rw,relatime - nfs4 10.0.0.7:/export/home rw,vers=4.2,addr=10.0.0.7
45 27 0:56 / /mnt/c rw,noatime - 9p drvfs rw,dirsync,aname=drvfs;path=C:\\134
46 27 0:57 / /mnt/s3 rw,nosuid - fuse.s3fs s3fs rw,user_id=0
47 27 0:58 / /old rw - ramfs ramfs rw
48 27 254:0 /srv/data /old/data rw,relatime - ext4 /dev/vda rw
49 27 253:3 / /zram rw,relatime - ext4 /dev/zram1 rw
50 27 0:61 / /bound rw,relatime - btrfs /dev/sdc1 rw,subvol=/@home
"""
"""A machine; /old/data was mounted before ramfs came over /old, and is hidden by it."""

DOCKER = """\
812 700 0:71 / / rw,relatime - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/AB:/l/CD
813 812 0:74 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
814 812 0:75 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
820 812 254:1 /var/lib/docker/volumes/runs/_data /var/lib/privpipe rw,relatime - ext4 /dev/vda1 rw
821 812 254:1 /home/me/secrets /etc/privpipe/certs ro,relatime - ext4 /dev/vda1 rw
822 812 0:80 / /tmp rw,relatime - tmpfs tmpfs rw
"""

PODMAN = "900 800 0:90 / / rw,nodev - fuse.fuse-overlayfs fuse-overlayfs rw,user_id=0\n"

POD = """\
1200 1100 0:200 / / ro,relatime - overlay overlay ro,lowerdir=/x,upperdir=/y,workdir=/z
1210 1200 259:1 /var/lib/kubelet/pods/0c1/volumes/kubernetes.io~empty-dir/home \
/var/lib/privpipe rw,noatime - xfs /dev/nvme0n1p1 rw
1211 1210 259:9 / /var/lib/privpipe/account rw,relatime - ext4 /dev/nvme1n1 rw
"""


@pytest.mark.parametrize(
    ("table", "place", "mounted", "loss"),
    [
        (HOST, "/home/me/account", "/", ""),
        (HOST, "/dev/shm/account", "/dev/shm", "tmpfs"),
        (HOST, "/dev/account", "/dev", "devtmpfs"),
        (HOST, "/run/user/1000/keys", "/run/user/1000", "tmpfs"),
        (HOST, "/runner/keys", "/", ""),  # a name that begins alike is another
        (HOST, "/run", "/run", "tmpfs"),
        (HOST, "/srv/two words/account", "/srv/two words", ""),
        (HOST, "/srv/two/account", "/", ""),
        (HOST, "/net/home/me/account", "/net/home", ""),
        (HOST, "/mnt/c/account", "/mnt/c", ""),
        (HOST, "/mnt/s3/account", "/mnt/s3", ""),
        (HOST, "/bound/account", "/bound", ""),
        (HOST, "/old/account", "/old", "ramfs"),
        (HOST, "/old/data/account", "/old", "ramfs"),
        (HOST, "/zram/account", "/zram", "memory"),
        (DOCKER, "/root/.local/share/privpipe/account", "/", "container"),
        (DOCKER, "/var/lib/privpipe/account", "/var/lib/privpipe", ""),
        (DOCKER, "/var/lib/privpipe2/account", "/", "container"),
        (DOCKER, "/tmp/account", "/tmp", "tmpfs"),
        (PODMAN, "/account", "/", "container"),
        (POD, "/var/lib/privpipe/keys", "/var/lib/privpipe", "pod"),
        (POD, "/var/lib/privpipe/account", "/var/lib/privpipe/account", ""),
    ],
)
def test_name_loss__of_real_tables(table: str, place: str, mounted: str, loss: str) -> None:
    mount = find_mount(place, read_mounts(table))
    assert mount is not None
    assert mount.point == mounted
    assert bool(name_loss(mount)) == bool(loss)
    assert loss in name_loss(mount)


def test_find_mount__over_another_hides_what_was_there() -> None:
    """A disk at /a/b, then memory over /a: whoever writes to /a/b writes to memory."""
    table = """\
1 0 8:1 / / rw - ext4 /dev/sda rw
2 1 8:2 / /a/b rw - ext4 /dev/sdb rw
3 1 0:9 / /a rw - tmpfs tmpfs rw
4 3 8:4 / /a/c rw - ext4 /dev/sdc rw
5 4 0:8 / /a/c rw - tmpfs tmpfs rw
"""
    for seen in (table, "".join(reversed(table.splitlines(keepends=True)))):
        mounts = read_mounts(seen)
        found = {one: find_mount(one, mounts) for one in ("/a/b/x", "/a/c/x", "/b")}
        assert {one: mount.kind for one, mount in found.items() if mount} == {
            "/a/b/x": "tmpfs",
            "/a/c/x": "tmpfs",
            "/b": "ext4",
        }


@pytest.mark.parametrize("table", ["", "nothing of the kind", "1 0 8:1 / / rw", "a b c d e f"])
def test_find_mount__of_no_such_table_knows_nothing(table: str) -> None:
    assert find_mount("/account", read_mounts(table)) is None


def test_read_mounts__one_torn_line_hides_no_other() -> None:
    mount = find_mount("/dev/shm/a", read_mounts(HOST.replace(" - proc proc rw", " - ")))
    assert mount is not None
    assert mount.kind == "tmpfs"


def test_find_mount__of_this_machine_has_the_device_of_the_folder(tmp_path: Path) -> None:
    table = Path("/proc/self/mountinfo").read_text()
    mount = find_mount(os.path.realpath(tmp_path), read_mounts(table))
    assert mount is not None
    assert os.stat(mount.point).st_dev == os.stat(tmp_path).st_dev
