// Command stop ends a generation by its id: its reader gets what was generated, usage, and no error.
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
	ctx := context.Background()
	request := headrace.NewRequest("default", headrace.Prompt("The river"), headrace.MaxOutputTokens(512))
	generation := client.Generate(ctx, request)
	isAsked := false
	for _, err := range generation.Deltas() {
		if err != nil {
			log.Fatal(err)
		}
		if !isAsked { // any client with the same credentials may; the id is known with the first event
			isAsked = true
			if _, err := client.CancelGeneration(ctx, headrace.ByID(generation.ID())); err != nil {
				log.Fatal(err)
			}
		}
	}
	fmt.Println("ended with", generation.FinishReason(0), "after", generation.Usage().GetOutputTokenCount(), "tokens")

	found, err := client.GetGeneration(ctx, headrace.ByID(generation.ID()))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("it is", found.GetState())
}
