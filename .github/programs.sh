#!/bin/sh
# Installs the programs that `make test` runs, on a machine of GitHub. Node, Chromium and Helm are there.
set -eu
# Their packages start services, on ports that tests use.
printf '#!/bin/sh\nexit 101\n' | sudo tee /usr/sbin/policy-rc.d > /dev/null
sudo chmod +x /usr/sbin/policy-rc.d
sudo apt-get -q update
sudo apt-get -q install --yes --no-install-recommends \
    bubblewrap faketime haproxy nginx-light prometheus redis-server spin wrk
# Ubuntu keeps namespaces from users, and with them a part of the profile `strict`.
sudo sysctl --write kernel.apparmor_restrict_unprivileged_userns=0
