// A Go receiver for HookMQ events, without modules. It remembers events in memory until the process ends.
//
// HOOK_SECRETS='whsec_... whpk_...' go run .
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// verify returns an error unless one of keys (whsec_... or whpk_...) signed this request within the last five minutes.
func verify(header http.Header, body []byte, keys []string) error {
	id, timestamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseUint(timestamp, 10, 48)
	if id == "" || strings.Contains(id, ".") || err != nil {
		return errors.New("not signed")
	}
	if age := time.Since(time.Unix(int64(seconds), 0)); age > 5*time.Minute || age < -5*time.Minute {
		return errors.New("too old, or from the future")
	}
	content := append([]byte(id+"."+timestamp+"."), body...)
	for _, one := range strings.SplitN(header.Get("webhook-signature"), " ", 32) {
		version, text, _ := strings.Cut(one, ",")
		signature, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			continue
		}
		for _, key := range keys {
			kind, encoded, _ := strings.Cut(key, "_")
			decoded, err := base64.StdEncoding.DecodeString(encoded)
			if err != nil {
				return errors.New("a key is not base64")
			}
			switch {
			case kind == "whsec" && version == "v1":
				mac := hmac.New(sha256.New, decoded)
				mac.Write(content)
				if hmac.Equal(mac.Sum(nil), signature) {
					return nil
				}
			case kind == "whpk" && version == "v1a" && len(decoded) == ed25519.PublicKeySize:
				if ed25519.Verify(decoded, content, signature) {
					return nil
				}
			}
		}
	}
	return errors.New("wrong signature")
}

const (
	largest    = 16 << 20
	remembered = 100_000
)

type event struct {
	ID     string          `json:"id"`
	Source string          `json:"source"`
	Type   string          `json:"type"`
	Data   json.RawMessage `json:"data"`
}

type receiver struct {
	keys   []string
	mutex  sync.Mutex
	seen   map[string]bool
	order  []string
	counts map[string]int
}

// handle handles an event: replace this function. It counts the events of each type.
func (r *receiver) handle(one event) {
	r.counts[one.Type]++
}

func (r *receiver) receive(header http.Header, body []byte) (int, error) {
	if err := verify(header, body, r.keys); err != nil {
		return http.StatusUnauthorized, err
	}
	if header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return http.StatusBadRequest, err
		}
		if body, err = io.ReadAll(io.LimitReader(unzipped, largest+1)); err != nil || len(body) > largest {
			return http.StatusBadRequest, errors.New("not gzip, or too large")
		}
	}
	var events []event
	if !bytes.HasPrefix(bytes.TrimSpace(body), []byte("[")) {
		body = append(append([]byte("["), body...), ']')
	}
	if err := json.Unmarshal(body, &events); err != nil {
		return http.StatusBadRequest, err
	}
	for _, one := range events {
		if one.ID == "" || one.Source == "" {
			return http.StatusBadRequest, errors.New("not an event")
		}
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, one := range events {
		id := one.Source + " " + one.ID
		if r.seen[id] {
			continue
		}
		r.handle(one)
		r.seen[id] = true
		if r.order = append(r.order, id); len(r.order) > remembered {
			delete(r.seen, r.order[0])
			r.order = r.order[1:]
		}
	}
	return http.StatusNoContent, nil
}

func (r *receiver) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	switch {
	case request.Method == http.MethodGet && request.URL.Path == "/counts":
		r.mutex.Lock()
		defer r.mutex.Unlock()
		response.Header().Set("Content-Type", "application/json")
		json.NewEncoder(response).Encode(map[string]any{"counts": r.counts})
	case request.Method == http.MethodPost && request.URL.Path == "/hook":
		body, err := io.ReadAll(http.MaxBytesReader(response, request.Body, largest))
		if err != nil {
			http.Error(response, "the body is too large, or incomplete", http.StatusRequestEntityTooLarge)
			return
		}
		status, err := r.receive(request.Header, body)
		if err != nil {
			http.Error(response, err.Error(), status)
			return
		}
		response.WriteHeader(status)
	default:
		http.NotFound(response, request)
	}
}

func main() {
	keys := strings.Fields(os.Getenv("HOOK_SECRETS"))
	if len(keys) == 0 {
		log.Fatal("HOOK_SECRETS: expected secrets (whsec_...) and public keys (whpk_...), separated by spaces")
	}
	for _, key := range keys {
		kind, text, _ := strings.Cut(key, "_")
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(decoded) < 24 || (kind != "whsec" && kind != "whpk") {
			log.Fatal("HOOK_SECRETS: contains something else than a secret or a public key")
		}
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "8000"
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("listening on http://%s\n", listener.Addr())
	log.Fatal(http.Serve(listener, &receiver{keys: keys, seen: map[string]bool{}, counts: map[string]int{}}))
}
