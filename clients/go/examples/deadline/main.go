// Command deadline gives a generation 300 ms, and keeps what came in time.
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
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	request := headrace.NewRequest("default", headrace.Prompt("The river"), headrace.MaxOutputTokens(512))
	text, err := client.Generate(ctx, request).Text()
	if err != nil && !errors.Is(err, context.DeadlineExceeded) { // or headrace.ErrDeadline
		log.Fatal(err)
	}
	fmt.Printf("%q in time, then %v\n", text, err)

	// A time limit is the gentle way: the answer ends early and well.
	soft := headrace.NewRequest("default",
		headrace.Prompt("The river"), headrace.MaxOutputTokens(512), headrace.TimeLimit(300*time.Millisecond))
	answer, err := client.Generate(context.Background(), soft).Collect()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Usage.GetOutputTokenCount(), "tokens, ended with", answer.Choices[0].FinishReason)
}
