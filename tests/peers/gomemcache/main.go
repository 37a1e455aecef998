// gomemcache through what an application does with it. Usage: gomemcache HOST:PORT
package main

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/bradfitz/gomemcache/memcache"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func expect(err, wanted error) {
	if !errors.Is(err, wanted) {
		log.Fatalf("wanted %v, got %v", wanted, err)
	}
}

func main() {
	client := memcache.New(os.Args[1])
	must(client.Ping())
	must(client.Set(&memcache.Item{Key: "key", Value: []byte("value"), Flags: 7, Expiration: 600}))
	item, err := client.Get("key")
	must(err)
	if string(item.Value) != "value" || item.Flags != 7 {
		log.Fatalf("%+v", item)
	}
	expect(client.Add(item), memcache.ErrNotStored)
	item.Value = []byte("swapped")
	must(client.CompareAndSwap(item))
	expect(client.CompareAndSwap(item), memcache.ErrCASConflict)
	must(client.Append(&memcache.Item{Key: "key", Value: []byte("!")}))
	must(client.Touch("key", 60))
	expect(client.Touch("none", 60), memcache.ErrCacheMiss)
	item, err = client.GetAndTouch("key", 60)
	must(err)
	if string(item.Value) != "swapped!" {
		log.Fatalf("%q", item.Value)
	}
	var keys []string
	for n := range 100 {
		key := fmt.Sprintf("key%d", n)
		keys = append(keys, key)
		must(client.Set(&memcache.Item{Key: key, Value: []byte(key)}))
	}
	items, err := client.GetMulti(append(keys, "none"))
	must(err)
	if len(items) != 100 || string(items["key42"].Value) != "key42" {
		log.Fatalf("%d items", len(items))
	}
	must(client.Set(&memcache.Item{Key: "n", Value: []byte("40")}))
	number, err := client.Increment("n", 2)
	must(err)
	if number != 42 {
		log.Fatal(number)
	}
	_, err = client.Decrement("none", 1)
	expect(err, memcache.ErrCacheMiss)
	large := bytes.Repeat([]byte("v"), 1_000_000)
	must(client.Set(&memcache.Item{Key: "large", Value: large}))
	item, err = client.Get("large")
	must(err)
	if !bytes.Equal(item.Value, large) {
		log.Fatal("another value")
	}
	must(client.Delete("large"))
	expect(client.Delete("large"), memcache.ErrCacheMiss)
	must(client.FlushAll())
	_, err = client.Get("key")
	expect(err, memcache.ErrCacheMiss)
}
