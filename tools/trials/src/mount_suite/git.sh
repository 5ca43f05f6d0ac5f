# git: commits, gc, fsck and a clone.
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q first
cd first
for i in $(seq 200); do
    mkdir -p "d$((i % 9))"
    seq "$i" $((i * 40)) >"d$((i % 9))/f$i"
done
git add .
git commit -qm one
for i in $(seq 100); do rm -f "d$((i % 9))/f$i"; done
git add -A
git commit -qm two
git gc -q
git fsck --strict
cd ..
git clone -q first second
diff -r --exclude=.git first second
