// Command tokens counts the tokens of a text, by a service that the client has no method for.
package main

import (
	"context"
	"fmt"
	"log"

	headrace "github.com/headrace/headrace/clients/go"
	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
)

func main() {
	client, err := headrace.New("127.0.0.1:50051")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	answer, err := headracev1.NewTokenizeServiceClient(client.Conn()).Tokenize(context.Background(), &headracev1.TokenizeRequest{
		Model: "default",
		Input: &headracev1.TokenizeRequest_Text{Text: "The river"},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.GetTokenCount(), "tokens:", answer.GetTokenIds())
}
