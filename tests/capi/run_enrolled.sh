#!/bin/sh
# Runs a program with the configurations of an enrolled pair: PROGRAM MODEL_FILE says what is transferred, `kvpack enroll`
# makes the rest, PROGRAM RECEIVER_CONFIG PRODUCER_CONFIG does the work.
# usage: run_enrolled.sh KVPACK FOLDER PROGRAM
set -eu
kvpack=$1 folder=$2 program=$3
# In memory where that can be: how fast a disk is beside other work is no matter of these programs.
if [ -d /dev/shm ] && [ -w /dev/shm ]; then
  folder=$(mktemp -d /dev/shm/kvpack-enrolled.XXXXXX)
  trap 'rm -rf "$folder"' EXIT
else
  rm -rf "$folder"
  mkdir -p "$folder"
fi
program=$(cd "$(dirname "$program")" && pwd)/$(basename "$program")
cd "$folder"

"$program" model.json
{
  "$kvpack" enroll ca ca
  "$kvpack" enroll request receiver --role receiver --server-name localhost
  "$kvpack" enroll request producer --role producer --server-name localhost
  "$kvpack" enroll sign ca receiver/request.pem --out receiver.pem
  "$kvpack" enroll sign ca producer/request.pem --out producer.pem
  cp -p receiver/hmac.key producer/hmac.key
  "$kvpack" enroll finish receiver --role receiver --certificate receiver.pem --ca ca/ca.pem --peer producer.pem \
    --model model.json --listen 127.0.0.1:0 --receipts receipts.jsonl --metrics-listen 127.0.0.1:0
  "$kvpack" enroll finish producer --role producer --certificate producer.pem --ca ca/ca.pem --peer receiver.pem \
    --model model.json --receiver localhost:1 --pacing 0
} >enroll.log 2>&1 || {
  cat enroll.log
  exit 1
}
"$program" receiver/receiver.json producer/producer.json
