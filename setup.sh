#!/bin/bash
# Installs the Debian 12 packages that are missing, and says which. Nothing to do costs a fraction of a second.
#   ./setup.sh          everything but the browser
#   ./setup.sh build    what building, testing and the demo need
#   ./setup.sh browser  only what the test of the live page needs beyond that: Chromium, driven from Python
#   ./setup.sh check    only the checkers: clang-19 (also compiles the mirror loss dropper), clang-tidy, clang-format
set -u
build_packages=(
  g++-12 make cmake ninja-build ccache pkg-config git
  libcaf-dev libdpdk-dev librocksdb-dev libcapnp-dev capnproto libzstd-dev libcpp-httplib-dev libasio-dev libssl-dev libxxhash-dev
  prometheus-cpp-dev
  doctest-dev libcli11-dev libspdlog-dev libfmt-dev libtomlplusplus-dev nlohmann-json3-dev libbenchmark-dev
  python3 python3-torch python3-numpy
  iproute2 ethtool procps util-linux tcpdump openssl
)
browser_packages=(chromium chromium-driver python3-selenium fonts-dejavu-core)
check_packages=(clang-19 libclang-rt-19-dev clang-tidy-19 clang-format-19 dpkg-dev python3-venv python3-setuptools)

case "${1:-all}" in
  all) packages=("${build_packages[@]}" "${check_packages[@]}") ;;
  build) packages=("${build_packages[@]}") ;;
  browser) packages=("${browser_packages[@]}") ;;
  check) packages=("${check_packages[@]}") ;;
  *) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null; then
  echo "setup.sh: this is not Debian (dpkg-query is missing); install by hand: ${packages[*]}" >&2
  exit 1
fi
installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "${packages[@]}" 2>/dev/null | sed -n 's/^.i  *//p')
missing=()
for package in "${packages[@]}"; do
  grep -qxF -- "$package" <<<"$installed" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup.sh: all ${#packages[@]} packages are installed"
  exit 0
fi

echo "setup.sh: missing: ${missing[*]}"
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    sudo=(sudo)
  else
    echo "setup.sh: not root and no usable sudo; run as root:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
fi
export DEBIAN_FRONTEND=noninteractive
echo "setup.sh: reading the package lists"
if ! "${sudo[@]}" apt-get update -qq; then
  echo "setup.sh: apt-get update failed; is there a network?" >&2
  exit 1
fi
unknown=()
for package in "${missing[@]}"; do
  candidate=$(LC_ALL=C apt-cache policy "$package" | sed -n 's/^ *Candidate: //p')
  if [ -z "$candidate" ] || [ "$candidate" = "(none)" ]; then unknown+=("$package"); fi
done
if [ ${#unknown[@]} -gt 0 ]; then
  . /etc/os-release
  echo "setup.sh: not in the configured suites of this system (${PRETTY_NAME:-unknown}): ${unknown[*]}" >&2
  echo "setup.sh: Debian 12 has them in main of bookworm, bookworm-updates and bookworm-security" >&2
  exit 1
fi
echo "setup.sh: installing ${#missing[@]} packages"
if ! "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; then
  echo "setup.sh: apt-get install failed" >&2
  exit 1
fi
echo "setup.sh: done"
