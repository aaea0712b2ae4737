# A repository's life: init, commit, branch, clone, push, gc.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GIT_CONFIG_GLOBAL=$dir/config
git config --global user.name Someone
git config --global user.email someone@example.org
git config --global init.defaultBranch main
cd "$dir"
git init -q work
cd work
for i in $(seq 50); do echo "line $i" > "file$i"; done
ln -s file1 link
git add .
git commit -qm first
git checkout -qb topic
echo more >> file1
git commit -qam second
git clone -q --bare . ../bare.git
git clone -q ../bare.git ../copy
cd ../copy
git checkout -q main
git merge -q origin/topic
echo third > new
git add new
git commit -qm third
git push -q origin main
git gc -q
git fsck --strict
[ "$(git log --oneline | wc -l)" = 3 ]
[ "$(git -C ../bare.git rev-parse main)" = "$(git rev-parse HEAD)" ]
[ -z "$(git status --porcelain)" ]
[ "$(readlink link)" = file1 ]
