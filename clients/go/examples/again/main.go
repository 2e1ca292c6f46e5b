// Command again asks twice with the same key: the generation runs once, and its end is read by another call.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"

	headrace "github.com/headrace/headrace/clients/go"
)

func main() {
	client, err := headrace.New("127.0.0.1:50051")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	key := "order-" + rand.Text()
	request := headrace.NewRequest("default",
		headrace.Prompt("The river"), headrace.MaxOutputTokens(32), headrace.IdempotencyKey(key))

	// A connection that breaks here is made again, and the text goes on behind its last piece.
	generation := client.Generate(ctx, request)
	first, err := generation.Text()
	if err != nil {
		log.Fatal(err)
	}
	repeated := client.Generate(ctx, request)
	second, err := repeated.Text()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the same text:", first == second, "of the same generation:", generation.ID() == repeated.ID())

	// Another process, or the same one after a restart, reads from where it stopped: here behind event 2.
	rest, err := client.Attach(ctx, headrace.ByKey(key), 2).Text()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("behind event 2: %d of %d characters\n", len(rest), len(first))
}
