// Command first streams an answer.
package main

import (
	"context"
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
	request := headrace.NewRequest("default", headrace.Prompt("The river"), headrace.MaxOutputTokens(64))
	for piece, err := range client.Generate(context.Background(), request).Deltas() {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(piece)
	}
}
