# A package made into an sdist and a wheel, and installed from each, without a network.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
mkdir -p package/greeting
echo 'def hello(): return "hello from a package"' > package/greeting/__init__.py
cat > package/setup.py <<'P'
from setuptools import setup
setup(name="greeting", version="1.2.3", packages=["greeting"], entry_points={"console_scripts": ["greet=greeting:hello"]})
P
(cd package && python3 setup.py -q sdist -d ../dist)
export PIP_NO_INDEX=1 PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
pip wheel -q --no-build-isolation --no-deps -w wheels ./package
pip install -q wheels/greeting-1.2.3-*.whl
[ "$(python3 -c 'import greeting; print(greeting.hello())')" = 'hello from a package' ]
pip uninstall -q -y greeting
! python3 -c 'import greeting' 2> /dev/null
pip install -q --no-build-isolation dist/greeting-1.2.3.tar.gz
pip show greeting | grep -qx 'Version: 1.2.3'
command -v greet > /dev/null
pip uninstall -q -y greeting
