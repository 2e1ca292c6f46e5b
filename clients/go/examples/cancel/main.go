// Command cancel stops a generation in the ways of Go: by leaving the loop, and by its context.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	headrace "github.com/headrace/headrace/clients/go"
)

func main() {
	client, err := headrace.New("127.0.0.1:50051")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	request := headrace.NewRequest("default", headrace.Prompt("The river"), headrace.MaxOutputTokens(512))

	for piece, err := range client.Generate(context.Background(), request).Deltas() {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("enough: %q\n", piece)
		break // cancels the call; the engine stops
	}

	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(200*time.Millisecond, cancel) // somebody else, at any time
	text, err := client.Generate(ctx, request).Text()
	if errors.Is(err, context.Canceled) { // or headrace.ErrCancelled
		fmt.Printf("cancelled after %d characters\n", len(text))
	}
}
