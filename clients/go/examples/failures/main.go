// Command failures shows what an error says.
package main

import (
	"context"
	"errors"
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
	show(client, headrace.NewRequest("default", headrace.Prompt("hi"), headrace.Temperature(9), headrace.TopP(3)))
	show(client, headrace.NewRequest("no-such-model", headrace.Prompt("hi")))
}

func show(client *headrace.Client, request *headrace.Request) {
	_, err := client.Generate(context.Background(), request).Text()
	var failed *headrace.Error
	switch {
	case err == nil:
		fmt.Println("no failure")
	case errors.Is(err, headrace.ErrInvalidRequest):
		errors.As(err, &failed)
		for _, violation := range failed.Violations { // all of them, not the first
			fmt.Println(violation.Field, violation.Description)
		}
	case errors.Is(err, headrace.ErrOverloaded): // the line is full, or a rate limit
		errors.As(err, &failed)
		fmt.Println("busy; come back in", failed.RetryAfter)
	case errors.As(err, &failed):
		fmt.Println(failed.Code, failed.Reason, failed.Message, "retriable:", failed.Retriable())
		fmt.Println("the server's log has it as", failed.RequestID)
	}
}
