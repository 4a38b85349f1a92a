// Asks a daemon with an unmodified go-redis, and prints every reply as a line of JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/redis/go-redis/v9"
)

func show(reply any, err error) {
	if err != nil {
		reply = err.Error()
	}
	line, _ := json.Marshal(reply)
	fmt.Println(string(line))
}

func main() {
	address, password := "127.0.0.1:"+os.Args[1], os.Args[2]
	ctx := context.Background()
	for _, protocol := range []int{2, 3} {
		client := redis.NewClient(&redis.Options{Addr: address, Password: password, Protocol: protocol})
		pong, err := client.Ping(ctx).Result()
		show(pong == "PONG", err)
		key := fmt.Sprintf("go:%d", protocol)
		for range 3 {
			show(client.Do(ctx, "CL.THROTTLE", key, 1, 30, 60, 1).Result())
		}
		pipeline := client.Pipeline()
		var checks []*redis.Cmd
		for range 3 {
			checks = append(checks, pipeline.Do(ctx, "TG.CHECK", "site", "api_key", key))
		}
		pipeline.Exec(ctx)
		for _, check := range checks {
			show(check.Result())
		}
		client.Close()
	}
	stranger := redis.NewClient(&redis.Options{Addr: address, Password: "wrong", MaxRetries: -1})
	if stranger.Ping(ctx).Err() != nil {
		show("refused", nil)
	}
}
